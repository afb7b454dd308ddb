def run(x):
    scale = x.abs().amax(-1).clamp_min(1e-8) / 127
    return (x / scale.unsqueeze(1)).round().char(), scale
