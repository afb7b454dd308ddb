def run(x, weight, scale):
    return x @ weight.t() * scale.float()
