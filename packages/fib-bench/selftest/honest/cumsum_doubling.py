def run(x):
    y, step = x.clone(), 1
    while step < x.shape[1]:
        y[:, step:] = y[:, step:] + y[:, :-step]
        step *= 2
    return y
