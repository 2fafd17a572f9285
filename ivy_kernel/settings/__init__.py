"""Every setting: its value, the source of that value, and the files it is read from.

========== =====================================================================
module     content
========== =====================================================================
`settings` every setting as one traitlets ``Configurable``, its sources, and the config files
`live`     settings that follow files and environment while a program runs
`urls`     the base URLs that a key may be sent to; values that must not be shown
========== =====================================================================
"""
