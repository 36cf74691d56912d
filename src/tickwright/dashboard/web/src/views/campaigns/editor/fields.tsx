/** The small fields of the form; each shows the mistakes that the check found in it. */
import { Select, TextInput } from "@mantine/core";
import type { ReactNode } from "react";
import type { Fields } from "./form";
import type { Mistake } from "./marks";

export interface FormProps {
  fields: Fields;
  change: (more: Partial<Fields>) => void;
  mistakes: readonly Mistake[];
}

/** Return the mistakes in a field of the definition, or in a part of it. */
export function wrong(mistakes: readonly Mistake[], name: string): ReactNode {
  const found = mistakes.filter((one) => one.field === name || one.field.startsWith(`${name}.`));
  if (found.length === 0) return undefined;
  return found.map((one) => `${one.field === name ? "" : `${one.field}: `}${one.message} (${one.code})`).join("; ");
}

type Texts = Exclude<keyof Fields, "type" | "repeats">;
interface Props extends FormProps {
  field: Texts;
  label: string;
  /** The field of the definition, if it is named otherwise. */
  path?: string;
  placeholder?: string;
  list?: string;
}

export function Text({ fields, change, mistakes, field, label, path = field, placeholder, list }: Props) {
  return (
    <TextInput
      label={label}
      placeholder={placeholder}
      list={list}
      value={fields[field]}
      error={wrong(mistakes, path)}
      onChange={(event) => change({ [field]: event.currentTarget.value })}
    />
  );
}

export function Choice({ fields, change, mistakes, field, label, path = field, options }: Props & { options: { value: string; label: string }[] }) {
  return <Select allowDeselect={false} label={label} data={options} value={fields[field]} error={wrong(mistakes, path)} onChange={(value) => change({ [field]: value ?? "" })} />;
}
