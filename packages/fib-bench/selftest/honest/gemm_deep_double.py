def run(x, weight):
    return (x.double() @ weight.double().t()).float()
