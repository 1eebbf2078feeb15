"""The processors of TPU hosts."""

from __future__ import annotations

# vCPUs of a virtual machine, by its number of chips. Source: `gcloud compute machine-types list`, as published in
# https://github.com/Cyclenerd/google-cloud-pricing-cost-calculator, tools/machinetypes.csv (ct3-hightpu-4t to
# ct6e-standard-8t). A v2-8 has the machine of a v3-8. A v6e-8 is listed with 180 and with 360, which are two threads
# on each core: 180 is taken. The machines of tpu7x are not in that list.
_VCPUS = {
    "v2": {4: 96},
    "v3": {4: 96},
    "v4": {4: 240},
    "v5e": {1: 24, 4: 112, 8: 224},
    "v5p": {4: 208},
    "v6e": {1: 44, 4: 180, 8: 180},
}


def host_vcpus(generation: str, chips: int) -> int | None:
    """Return the number of vCPUs of all hosts of a slice of a TPU generation; `None` if it is not known.

    Args:
        generation: Name of the generation, such as `"v5e"`.
        chips: Number of chips of the slice.
    """
    machines = _VCPUS.get(generation, {})
    fitting = [size for size in machines if chips % size == 0 and (chips <= 8 or size == 4)]
    return machines[max(fitting)] * (chips // max(fitting)) if fitting else None
