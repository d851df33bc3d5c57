import { request } from '../request';
import type { IGrant } from './kernels';

/** Opens the stream of kernels. */
export function openEvents(signal: AbortSignal): Promise<Response> {
  return request(['events'], { signal, cache: 'no-store' });
}

/** What of a kernel can be kept: the kernel, which is not ended, or its GPU, so that the kernel is not parked. */
export type Kept = 'keep_until' | 'keep_gpu_until';

/** Keeps it until that time, or no longer. Rejects with the gateway's sentence, as the others here. */
export async function keep(id: string, what: Kept, until: Date | null): Promise<void> {
  const body = JSON.stringify({ [what]: until?.toISOString() ?? null });
  await request(['kernels', id], { method: 'PATCH', body });
}

/** Replaces the list of those with whom a kernel is shared. */
export async function share(id: string, grants: readonly IGrant[]): Promise<void> {
  await request(['kernels', id], { method: 'PATCH', body: JSON.stringify({ shared_with: grants }) });
}

/** Interrupts, restarts or ends a kernel that the Jupyter server has not started. */
export async function act(id: string, action: 'interrupt' | 'restart' | 'shutdown'): Promise<void> {
  await (action === 'shutdown'
    ? request(['kernels', id], { method: 'DELETE' })
    : request(['kernels', id, action], { method: 'POST' }));
}
