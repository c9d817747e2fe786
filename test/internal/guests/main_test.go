package guests

import (
	"fmt"
	"os"
	"testing"

	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/testkit"
)

// limit is how many guests may boot: `make test` must end in time.
const limit = 20

func TestMain(m *testing.M) {
	machinetest.InMakeTest = true
	testkit.Main(counted{m})
}

type counted struct{ *testing.M }

func (m counted) Run() int {
	code := m.M.Run()
	n := machinetest.Booted()
	if n > 0 {
		fmt.Printf("guests: %d booted, of at most %d\n", n, limit)
	}
	if n > limit {
		fmt.Fprintf(os.Stderr, "guests: %d are more than `make test` has time for: "+
			"have an existing lab show it, or leave it to make test-all\n", n)
		return 1
	}
	return code
}
