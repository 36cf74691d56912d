/** The small fields of the form; each shows the mistakes that the check found in its word. */
import { Select, TextInput } from "@mantine/core";
import type { ReactNode } from "react";
import type { Fields } from "./form";
import type { Mistake } from "./marks";

export interface FormProps {
  fields: Fields;
  change: (more: Partial<Fields>) => void;
  mistakes: readonly Mistake[];
}

/** Return what is wrong with a word, or with a part of it. */
export function wrong(mistakes: readonly Mistake[], word: string): ReactNode {
  const found = mistakes.filter((one) => one.field === word || one.field.startsWith(`${word}.`));
  if (found.length === 0) return undefined;
  return found.map((one) => `${one.field === word ? "" : `${one.field}: `}${one.message} (${one.code})`).join("; ");
}

type Texts = Exclude<keyof Fields, "type" | "repeats">;
interface Props extends FormProps {
  field: Texts;
  label: string;
  word?: string;
  placeholder?: string;
  list?: string;
}

export function Text({ fields, change, mistakes, field, label, word = field, placeholder, list }: Props) {
  return (
    <TextInput
      label={label}
      placeholder={placeholder}
      list={list}
      value={fields[field]}
      error={wrong(mistakes, word)}
      onChange={(event) => change({ [field]: event.currentTarget.value })}
    />
  );
}

export function Choice({ fields, change, mistakes, field, label, word = field, options }: Props & { options: { value: string; label: string }[] }) {
  return <Select allowDeselect={false} label={label} data={options} value={fields[field]} error={wrong(mistakes, word)} onChange={(value) => change({ [field]: value ?? "" })} />;
}
