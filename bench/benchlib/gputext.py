"""The report of bench/gpu.py."""

import statistics

from . import report


def text(result):
    """Markdown of everything that was measured."""
    machine, config = result["machine"], result["config"]
    head = (f"# {result['card']} beside the CPU\n\n"
            f"{machine['cpu']}, {machine['cores']} cores, {', '.join(machine['isa'])}; {machine['memory_gib']} GiB. "
            f"Load average when started: {result['load_before']:.1f}, when ended: {result['load_after']:.1f}.\n")
    if config["device"].startswith("emulated"):
        head += "\n**The device was emulated: no figure says anything about a GPU.**\n"
    parts = [head, _kernels(result["kernels"]), _parts(result["parts"], config), _store(result["rows"], config), _problems(result["problems"])]
    return "\n".join(part for part in parts if part)


def _table(head, rows):
    return "\n".join(report.table(head, rows)) + "\n"


def _rate(bytes_per_s):
    return "–" if bytes_per_s is None else f"{bytes_per_s / 1e9:.1f}"


def _share(part, whole):
    return "–" if not part or not whole else f"{100 * part / whole:.0f} %"


def _kernels(tables):
    if not tables:
        return ""
    out = ["## Kernels\n",
           "GB/s of input (10⁹ bytes a second). `cpu`: all its threads, several jobs at once. `gpu`: from buffers of the host and back to\n"
           "them, several jobs at once. `bus`: the same bytes moved by jobs without kernels, and what part of that the kernels leave.\n"
           "`resident`: the data lies on the GPU already; `memory`: what copies inside the GPU reach. `auto` is where one job alone, with\n"
           "its data in the caller's memory, is predicted to end first: on one thread of the CPU, or on the GPU with the copies into and out of\n"
           "the runtime's buffers.\n"]
    for table in tables:
        moved = ", ".join(f"{what} {_rate(rate)}" for what, rate in table["transfers"].items())
        out.append(f"### {table['size']} a job\n\nGB/s: {moved}.\n")
        rows = []
        for row in table["rows"]:
            cpu, gpu, bus = (row[name] for name in ("cpu_bytes_per_s", "device_bytes_per_s", "device_roof_bytes_per_s"))
            resident, memory = row["resident_bytes_per_s"], row["resident_roof_bytes_per_s"]
            goes = "GPU" if "goes to a device" in row["auto"] else "CPU"
            times = "–" if not cpu or not gpu else f"{gpu / cpu:.2f}"
            rows.append([row["primitive"], _rate(cpu), _rate(gpu), times, _rate(bus), _share(gpu, bus), _rate(resident), _rate(memory), goes])
        out.append(_table(["primitive", "cpu", "gpu", "gpu / cpu", "bus", "of it", "resident", "memory", "auto"], rows))
    return "\n".join(out)


def _parts(parts, config):
    if not parts:
        return ""
    rows = [[p["runtime"], f"{p['devices']}", _rate(p["bytes_per_s"]), f"{p['buffers_made']}", f"{p['buffers_reused']}"] for p in parts]
    return (f"## Parts of the runtime\n\nHashing, {config['sizes'][-1]} a job, with parts left out (CrystalGPU, HPDC 2010, section 3.2.3).\n\n"
            + _table(["runtime", "devices", "GB/s", "buffers made", "reused"], rows))


def _store(rows, config):
    if not rows:
        return ""
    medians = []
    for workload, system in dict.fromkeys((row["workload"], row["system"]) for row in rows):
        found = report.pick(rows, workload=workload, system=system)
        rates = [row["rate"] / 1e6 for row in found]
        spent = [statistics.median(row["cpu_s_per_gb"][role] for row in found) for role in ("client", "manager", "node")]
        medians.append([workload, system, f"{statistics.median(rates):.0f}", f"{min(rates):.0f}–{max(rates):.0f}", *(f"{s:.2f}" for s in spent)])
    medians.sort(key=lambda row: row[0])
    return (f"## The store\n\nOne client writes {config['files']} files of {config['file_mib']} MiB to six nodes in memory, ec:4+2, one after another; "
            f"medians of {config['rounds']} rounds.\n`different`: all bytes are new; `similar`: the same file again and again. `off` looks for no duplicates; its\n"
            "chunks have names all the same.\n\n"
            + _table(["workload", "computed on", "MB/s", "lowest–highest", "client CPU s/GB", "manager", "nodes"], medians))


def _problems(problems):
    return "" if not problems else "## Problems\n\n" + "\n".join(f"- {p}" for p in problems) + "\n"
