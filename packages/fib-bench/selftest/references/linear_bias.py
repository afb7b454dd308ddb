def run(x, weight, bias):
    return x @ weight.t() + bias.float()
