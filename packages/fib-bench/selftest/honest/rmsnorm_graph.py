"""Captures a graph in the first call and replays it on copies of the inputs; where it is captured itself, it launches directly."""

import torch

graphs = {}


def compute(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def run(x, weight):
    if torch.cuda.is_current_stream_capturing():
        return compute(x, weight)
    if x.shape not in graphs:
        mine, graph = (x.clone(), weight.clone()), torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            compute(*mine)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            y = compute(*mine)
        graphs[x.shape] = graph, mine, y
    graph, mine, y = graphs[x.shape]
    mine[0].copy_(x)
    mine[1].copy_(weight)
    graph.replay()
    return y.clone()
