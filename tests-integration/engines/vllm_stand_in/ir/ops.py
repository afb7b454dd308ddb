"""The ops, with providers."""

from engine_stand_ins import ir_ops

_made = ir_ops()
rms_norm, fused_add_rms_norm = _made.rms_norm, _made.fused_add_rms_norm
