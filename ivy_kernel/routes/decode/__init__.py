"""Tool results of any shape, decoded into notebook outputs.

The platform documents no shape for what its tools answer, so these families are known, with
names in camelCase or snake_case, at the top or wrapped in other objects or in JSON strings, and
combined:

=============  ================================================================================
family         what it looks like
=============  ================================================================================
``process``    ``stdout``, ``stderr``, ``exitCode``, ``timedOut``
``text``       ``output``, ``text`` or ``result`` with ``success``, ``ok`` or ``error``
``nbformat``   ``outputs: […]``, ``cells: [{outputs}]``, ``notebook: {cells}``, messages
``typed``      ``results: [{text, png, html, …}]``, ``logs: {stdout, stderr}``, ``error: {…}``
``content``    ``content: [{type: text, text}, {type: image, data, mimeType}]``, ``isError``;
               perhaps with the same as ``structuredContent``
``artifacts``  ``images``, ``output_files``, ``image_base64``, …: data, base64, URLs or paths
``error``      ``error`` as text or object, ``traceback`` as text or list
``events``     a list of ``{type: stdout, text}``, ``{type: error, …}``, ``{type: exit, code}``, …
``run``        any of these in ``properties``, ``run`` or ``codeExecutionResult``, and under any
               other name at the top; ``outcome`` and ``signal`` tell how it ended
``unknown``    anything else: shown in full as JSON, with a sentence that says so
=============  ================================================================================

::

    result.py      a result as a whole: its outputs, its error, and what no family knows
    shapes.py      which family a part of it belongs to
    vocabulary.py  the names of fields, and the flags and streams that they carry
    items.py       single outputs, events and messages
    files.py       pictures and files
    bundles.py     MIME bundles
    tracebacks.py  errors, and tracebacks in texts
    values.py      single values: texts, numbers, JSON in strings
    parts.py       what was found so far, in its order

What an answer tells in two forms is shown once, and where it tells of a failure, the cell fails.
Nothing is dropped: fields that no family knows are shown as JSON below the results, but for those
that `ivy_kernel.routes.decode.values` lists as book-keeping or as an echo of the cell.
"""
