# SPDX-License-Identifier: Apache-2.0
import sys

from ._command import main

sys.exit(main())
