"""Routing: what a call goes through, in this order.

1. `call_sites`: the wrapper of a decorated function calls a route if a runtime is active, else the function.
2. `codegen`: the generated route. Fast path: the table of the call's variant (`call_variant`), a native one (`native`)
   or one of Python `guards`, gives the kernel, which is called.
3. `resolver`: the slow path of a call that no guard lets through. It validates the call (`validation`), makes its key,
   takes the first loaded candidate, asks whether it may be called now (`runs`), and caches an entry.
4. `dispatcher`: holds both paths of one definition; errors, shadow comparison (`shadow`) and planned calls.

`fib_apply.runtime.Router` makes the dispatcher and the candidates of a definition when its first route is bound.
Compilers see the user's function in place of a route: compiled code is not routed.
"""
