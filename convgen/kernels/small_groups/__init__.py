"""small_groups: groups of few channels, joined until they fill an instruction of mma.sync."""
