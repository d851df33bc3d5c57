/** A GPU of a kernel, in the JSON of the gateway. */
export interface IGPU {
  uuid: string;
  model?: string;
  memory_total?: number;
  memory_used: number;
  /** The part of the last seconds in which it computed; null if that is unknown. */
  utilization: number | null;
  busy_since?: string;
  idle_since?: string;
  error?: string;
}

/** A user or a group with whom a kernel is shared. */
export interface IGrant {
  user?: string;
  group?: string;
  right: 'read' | 'use';
}

/** A kernel's model in the JSON of the gateway. Every text may have been chosen by another user. */
export interface IKernelModel {
  id: string;
  name: string;
  execution_state: string;
  last_activity?: string;
  connections?: number;
  created?: string;
  reason?: string;
  cull_at?: string;
  keep_until?: string;
  gpu?: IGPU[];
  gpus?: number;
  flavor?: string;
  /** What has become of the GPU of a kernel that may be parked, and until when its owner keeps the GPU. */
  parked?: { state?: string | undefined; since?: string; reason?: string | undefined; keep_gpu_until?: string };
  owner?: string;
  /** The job that runs in it and has not ended. */
  job?: { id: string; name: string; cell: number; cells: number };
  /** Only the owner and admins see it. */
  shared_with?: IGrant[];
}

/** The use of a kernel's GPUs at one time: 0 to 1, or null while it was not known. */
export interface ISample {
  at: number;
  use: number | null;
}

/** Milliseconds between two samples of the use of GPUs. The gateway measures as often. */
export const SAMPLE_TIME = 10_000;

/** Bound on the samples of a kernel: ten minutes of them. */
export const MAX_SAMPLES = 60;

const NO_SAMPLES: readonly ISample[] = [];

/** The kernels that the server shows this user, as the stream of events tells them. */
export class Kernels {
  /** The name of the user at the gateway; empty where it has no users. */
  user = '';
  /** Whether a whole list has arrived. */
  loaded = false;
  /** Why the list may be out of date; empty if it is not. */
  problem = '';

  /** The kernels by id. */
  get all(): ReadonlyMap<string, IKernelModel> {
    return this.known;
  }

  /** Calls the function after each change, until the returned function is called. */
  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Takes an event of the stream. Changes count when their update is complete. */
  take(name: string, data: any): void {
    switch (name) {
      case 'reset':
        this.next = new Map();
        this.user = String(data.user ?? '');
        break;
      case 'kernels':
        for (const kernel of data.kernels as IKernelModel[]) {
          this.next.set(kernel.id, kernel);
        }
        for (const id of data.removed as string[]) {
          this.next.delete(id);
        }
        break;
      case 'unavailable':
        this.fail(String(data.message));
        break;
      case 'complete':
        this.known = new Map(this.next);
        this.loaded = true;
        this.problem = '';
        for (const id of [...this.samples.keys()].filter(id => !this.known.has(id))) {
          this.samples.delete(id);
        }
        this.changed();
    }
  }

  /** Keeps the list and says why it may be out of date. */
  fail(problem: string): void {
    if (this.problem !== problem) {
      this.problem = problem;
      this.changed();
    }
  }

  /** Adds a sample of each GPU's use. Must be called once per SAMPLE_TIME. */
  sample(now: number): void {
    for (const kernel of this.known.values()) {
      if (!kernel.gpu?.length) {
        continue;
      }
      const samples = this.samples.get(kernel.id) ?? [];
      samples.push({ at: now, use: this.problem ? null : useOf(kernel.gpu) });
      this.samples.set(kernel.id, samples.slice(-MAX_SAMPLES));
    }
    this.changed();
  }

  /** The use of a kernel's GPUs over the last minutes, the oldest first. */
  history(id: string): readonly ISample[] {
    return this.samples.get(id) ?? NO_SAMPLES;
  }

  private changed(): void {
    for (const listener of [...this.listeners]) {
      listener();
    }
  }

  private known = new Map<string, IKernelModel>();
  /** What the update that arrives makes of the list. */
  private next = new Map<string, IKernelModel>();
  private readonly samples = new Map<string, ISample[]>();
  private readonly listeners = new Set<() => void>();
}

/** The mean use of GPUs, or null if none is known. */
export function useOf(gpus: readonly IGPU[]): number | null {
  const known = gpus.map(gpu => gpu.utilization).filter(use => typeof use === 'number');
  return known.length ? known.reduce((sum, use) => sum + use, 0) / known.length : null;
}
