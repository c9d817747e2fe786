package labtest

import "os"

// Long says whether tests are to run in their large form too: sizes and repetitions that take
// minutes. The environment variable VNIC_LONG asks for it, as `make test-all` does.
func Long() bool { return os.Getenv("VNIC_LONG") != "" }
