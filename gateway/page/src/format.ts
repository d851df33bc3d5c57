// Texts for numbers and times. Times are in the viewer's time zone.

const exact = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });

export const time = (at: string | undefined): string => at ? exact.format(new Date(at)) : '';

/** A length of time in its largest unit, such as 3 min. */
export function span(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} days`;
}

export const since = (at: string, now: number): string => span((now - Date.parse(at)) / 1000);

const amount = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });
export const number = (n: number): string => amount.format(n);
/** An amount of memory in its unit. */
export function bytes(n: number): string {
  if (n < 2 ** 30) return `${Math.round(n / 2 ** 20)} MiB`;
  return `${(n / 2 ** 30).toFixed(1)} GiB`;
}

export const gibibytes = (bytes: number): string => `${amount.format(bytes / 2 ** 30)} GiB`;
