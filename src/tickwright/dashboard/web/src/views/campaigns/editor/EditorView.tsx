/** A campaign is made or changed: every mistake stands at its word, and the expression's at its very place. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get } from "../../../api/client";
import { Answer } from "../../../parts/Answer";
import { useUrl } from "../../../parts/useUrl";
import { View } from "../../../parts/View";
import { Editor } from "./Editor";
import { fieldsOf, NEW } from "./form";

export default function EditorView() {
  const name = useUrl().one("name");
  return <View title={name === "" ? "New campaign" : `Edit ${name}`}>{name === "" ? <Editor saved={null} begin={NEW} /> : <Saved key={name} name={name} />}</View>;
}

/** The version that was there when the form was opened: a newer one refuses the edit instead of being lost. */
function Saved({ name }: { name: string }) {
  const [opened] = useState(() => Date.now());
  const found = useQuery({
    queryKey: ["campaign-edit", name, opened],
    queryFn: ({ signal }) => get("/v1/campaigns/{name}", { path: { name }, signal }),
    staleTime: Infinity,
    refetchOnWindowFocus: false,
    gcTime: 0,
  });
  return (
    <Answer of={found} lines={12} alone>
      {(campaign) => <Editor saved={{ name, version: campaign.version }} begin={fieldsOf(name, campaign.definition)} />}
    </Answer>
  );
}
