/** Creates or changes a campaign. Each mistake is shown at its field, and those of the expression at their position. */
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

/** Edits the version at the time when the form was opened. If there is a newer one, the API refuses the edit. */
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
