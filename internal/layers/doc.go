// Package layers has tests of the module's source: which packages of this module each package may import (layers.txt),
// which packages may not import gVisor, which files may import unsafe, and that fuzz targets have inputs.
package layers
