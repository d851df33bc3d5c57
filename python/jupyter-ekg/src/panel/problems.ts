import { explain } from '../request';

/** Why the last action on each kernel failed. */
export class Problems {
  /** The sentence about a kernel; empty if its last action did not fail. */
  of(id: string): string {
    return this.sentences.get(id) ?? '';
  }

  /** Does something with a kernel. Resolves also if that fails. */
  async attempt(id: string, action: () => Promise<void>): Promise<void> {
    this.sentences.delete(id);
    try {
      await action();
    } catch (error) {
      this.sentences.set(id, explain(error));
    }
  }

  /** Forgets the kernels that are gone. */
  forget(isGone: (id: string) => boolean): void {
    for (const id of [...this.sentences.keys()].filter(isGone)) {
      this.sentences.delete(id);
    }
  }

  private readonly sentences = new Map<string, string>();
}
