// What the panel and the status bar say. Times are in the viewer's time zone.
import { MAX_SAMPLES, SAMPLE_TIME, useOf, type IGPU, type IGrant, type IKernelModel, type ISample } from './kernels';

/** A time of day, with its date if that is not today's. */
export function clock(at: string, now: number): string {
  const date = new Date(at);
  const time: Intl.DateTimeFormatOptions = { hour: '2-digit', minute: '2-digit' };
  const today = date.toDateString() === new Date(now).toDateString();
  return date.toLocaleString(undefined, today ? time : { day: 'numeric', month: 'short', ...time });
}

/** A length of time in its largest unit, such as "20 min". Empty below a minute. */
export function span(seconds: number): string {
  const minutes = Math.floor(Math.max(0, seconds) / 60);
  if (minutes < 1) {
    return '';
  }
  if (minutes < 60) {
    return `${minutes} min`;
  }
  if (minutes < 48 * 60) {
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }
  return `${Math.floor(minutes / 1440)} days`;
}

const STATES: Record<string, string> = {
  starting: 'Starting',
  idle: 'Idle',
  busy: 'Busy',
  restarting: 'Restarting',
  dead: 'Dead'
};

/** A kernel's state, with the time since it is idle. */
export function state(kernel: IKernelModel, now: number): string {
  const name = STATES[kernel.execution_state] ?? kernel.execution_state;
  const idle =
    kernel.execution_state === 'idle' && kernel.last_activity
      ? span((now - Date.parse(kernel.last_activity)) / 1000)
      : '';
  return idle ? `${name} for ${idle}` : name;
}

/** When a kernel will be ended, or until when it is kept; empty if neither is known. */
export function ending(kernel: IKernelModel, now: number): string {
  if (kernel.execution_state === 'dead') {
    return '';
  }
  if (kernel.keep_until) {
    return `Kept until ${clock(kernel.keep_until, now)}`;
  }
  return kernel.cull_at ? `Ends at ${clock(kernel.cull_at, now)}` : '';
}

/** Until when the GPU of a kernel that may be parked is kept; empty if it is not. */
export function gpuKept({ parked }: IKernelModel, now: number): string {
  return parked?.keep_gpu_until ? `GPU kept until ${clock(parked.keep_gpu_until, now)}` : '';
}

/** A text of the gateway, with its times in the viewer's zone. */
export function local(text: string, now: number): string {
  return text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, at => clock(at, now));
}

const number = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });

/** A number of kernels. */
export function count(kernels: number): string {
  return number.format(kernels);
}

/** A text of the gateway as a sentence: with a capital letter. */
export function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The use of GPUs, such as "83 %". */
export function use(gpus: readonly IGPU[]): string {
  const part = useOf(gpus);
  return part === null ? '? %' : `${Math.round(100 * part)} %`;
}

/** The memory of GPUs, such as "3 of 15 GiB". */
export function memory(gpus: readonly IGPU[]): string {
  const sum = (of: (gpu: IGPU) => number | undefined) => gpus.reduce((all, gpu) => all + (of(gpu) ?? 0), 0) / 2 ** 30;
  const total = sum(gpu => gpu.memory_total);
  const used = number.format(sum(gpu => gpu.memory_used));
  return total ? `${used} of ${number.format(total)} GiB` : `${used} GiB`;
}

/** The models of GPUs, such as "2 × Tesla T4". */
export function models(gpus: readonly IGPU[]): string {
  const counts = new Map<string, number>();
  for (const gpu of gpus) {
    const model = gpu.model ?? 'GPU';
    counts.set(model, (counts.get(model) ?? 0) + 1);
  }
  return [...counts].map(([model, count]) => (count > 1 ? `${count} × ${model}` : model)).join(', ');
}

/** A grant, such as "bob (read)". */
export function grant({ user, group, right }: IGrant): string {
  return `${user ?? `group ${group}`} (${right})`;
}

/** The job of a kernel, such as "Job train, cell 2 of 5"; empty without one. */
export function job({ job }: IKernelModel): string {
  if (!job) {
    return '';
  }
  return job.cell > 0 ? `Job ${job.name}, cell ${job.cell} of ${job.cells}` : `Job ${job.name}`;
}

/** What has become of the GPU of a kernel that may be parked; empty while the kernel has it. */
export function parked({ parked }: IKernelModel, now: number): string {
  const ago = parked?.since ? span((now - Date.parse(parked.since)) / 1000) : '';
  const why = parked?.reason ? `: ${parked.reason}` : '';
  switch (parked?.state) {
    case 'none':
      return ago ? `GPU given back ${ago} ago` : 'GPU given back';
    case 'parking':
      return 'Gives its GPU back';
    case 'parked':
      return ago ? `GPU parked ${ago}` : 'GPU parked';
    case 'waking':
      return why ? `Waits for its GPU${why}` : 'Gets its GPU again';
    case 'failed':
      return `Keeps its GPU${why}`;
    default:
      return '';
  }
}

/** What the status bar says of a kernel; empty if there is nothing that JupyterLab does not say itself. */
export function summary(kernel: IKernelModel, now: number): string {
  if (kernel.execution_state === 'starting' && kernel.reason) {
    return 'Kernel waits';
  }
  const end = ending(kernel, now);
  const held = kernel.gpu?.length ? `GPU ${use(kernel.gpu)}` : kernel.gpus ? `GPU: ${number.format(kernel.gpus)}` : '';
  const gpu = kernel.parked?.state === 'failed' ? held : parked(kernel, now) || held; // that it keeps it is no news
  const parts = [gpu, kernel.execution_state === 'idle' && (gpu || end) ? state(kernel, now) : '', end];
  return parts.filter(part => part).join(' · ');
}

/** The longer form of the same, for its tooltip. */
export function details(kernel: IKernelModel, now: number): string {
  const gpus = kernel.gpu ?? [];
  return [
    local(kernel.reason ?? '', now),
    state(kernel, now),
    job(kernel),
    gpus.length ? `${models(gpus)}: ${use(gpus)} in use, ${memory(gpus)}` : '',
    parked(kernel, now),
    gpuKept(kernel, now),
    ending(kernel, now)
  ]
    .filter(part => part)
    .join('\n');
}

/**
 * The line of samples in a box whose right side is now, as SVG's path. Unknown values, and times without samples, leave
 * gaps.
 */
export function curve(samples: readonly ISample[], now: number, width: number, height: number): string {
  let path = '';
  let last: number | undefined; // when the line has its end
  for (const { at, use } of samples) {
    const x = width * (1 - (now - at) / (MAX_SAMPLES * SAMPLE_TIME));
    if (use === null || x < 0) {
      last = undefined;
      continue;
    }
    const y = height * (1 - Math.min(1, Math.max(0, use)));
    const joined = last !== undefined && at - last < 2.5 * SAMPLE_TIME;
    path += `${joined ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    last = at;
  }
  return path;
}
