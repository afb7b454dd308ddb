def run(x, weight):
    wide = x.double()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight).float()
