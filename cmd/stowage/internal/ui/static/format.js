// Sizes and times as the commands show them.

// size formats a size in MiB.
export function size(mib) {
  const suffixes = "MGTPE";
  let unit = 0;
  for (; mib >= 1024 && unit < suffixes.length - 1; unit++) {
    mib /= 1024;
  }
  return `${Math.round(mib * 10) / 10}${suffixes[unit]}`;
}

// age formats the time since a date in the largest unit that it has at least two of.
export function age(date, now = Date.now()) {
  const seconds = Math.max(0, Math.floor((now - date) / 1000));
  if (seconds < 120) {
    return `${seconds}s`;
  }
  if (seconds < 2 * 3600) {
    return `${Math.floor(seconds / 60)}m`;
  }
  if (seconds < 48 * 3600) {
    return `${Math.floor(seconds / 3600)}h`;
  }
  return `${Math.floor(seconds / 86400)}d`;
}

// time formats a date to the second.
export function time(date) {
  const two = (n) => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

// labels formats labels.
export function labels(all) {
  return Object.entries(all ?? {}).map(([key, value]) => value === "" ? key : `${key}=${value}`).join(", ");
}

// count formats a number of things.
export function count(n, one, many = `${one}s`) {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}
