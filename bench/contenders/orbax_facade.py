# SPDX-License-Identifier: Apache-2.0
"""Stepwell by the interface of Orbax v1."""

from contenders.orbax_interface import OrbaxInterface

from stepwell.compat import orbax_v1


class OrbaxFacade(OrbaxInterface):
    key = "stepwell-v1"
    name = "Stepwell as Orbax v1"
    package = "stepwell"
    import_line = "from stepwell.compat import orbax_v1"
    durable = True
    library = orbax_v1
