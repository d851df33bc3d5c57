/** Time in ms after which a stream that is not needed any more ends. A browser has few connections to one server. */
export const UNNEEDED_TIME = 60_000;

/** Follows a stream from when it is needed until it was not needed for a while. */
export class Following {
  /** `needed` says whether the stream is needed now. `follow` follows it until its signal is aborted. */
  constructor(
    private readonly needed: () => boolean,
    private readonly follow: (signal: AbortSignal) => Promise<void>
  ) {}

  /** Whether the stream is followed. */
  get active(): boolean {
    return this.stop !== undefined;
  }

  /** Must be called when the answer of `needed` may have changed. */
  look(): void {
    if (this.needed()) {
      clearTimeout(this.timer);
      this.timer = undefined;
      if (!this.stop) {
        this.stop = new AbortController();
        void this.follow(this.stop.signal);
      }
    } else if (this.stop && this.timer === undefined) {
      this.timer = setTimeout(() => this.end(), UNNEEDED_TIME);
    }
  }

  private end(): void {
    this.timer = undefined;
    this.stop?.abort();
    this.stop = undefined;
  }

  private stop: AbortController | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;
}
