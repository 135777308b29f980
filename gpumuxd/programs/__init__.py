"""From a plan to launchable kernel groups: code generation, segmentation, profiling, export."""
