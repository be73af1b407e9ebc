"""What cells see as `rlm`: the module, and one file for each part of it.

`calls` carries an operation from any thread to the worker; `module` puts the parts together; `inheritance` lets threads
keep the scope of the cell that started them. A part (`history`, say) is a class or function whose operations are
`async def` under `@operation`.
"""
