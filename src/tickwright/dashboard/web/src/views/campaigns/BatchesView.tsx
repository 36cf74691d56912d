/** The batches that programs define, and when they run. */
import { View } from "../../parts/View";
import { BatchList } from "./BatchList";

export default function BatchesView() {
  return (
    <View title="Batches of programs">
      <BatchList kind="batches" />
    </View>
  );
}
