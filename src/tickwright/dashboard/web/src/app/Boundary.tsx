/** A view that fails shows its error in its place; the rest of the dashboard keeps working. */
import { Component, type ReactNode } from "react";
import { ErrorBox } from "../parts/ErrorBox";

export class Boundary extends Component<{ children: ReactNode }, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static getDerivedStateFromError(error: unknown): { error: unknown } {
    return { error };
  }

  override render(): ReactNode {
    if (this.state.error === null) return this.props.children;
    return <ErrorBox error={this.state.error} onRetry={() => this.setState({ error: null })} alone />;
  }
}
