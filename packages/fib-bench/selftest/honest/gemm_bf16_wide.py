def run(x, weight):
    return (x.float() @ weight.float().t()).bfloat16()
