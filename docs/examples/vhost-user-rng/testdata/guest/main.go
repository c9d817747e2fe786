// Command guest is the program of the guest that boots with the entropy device: it reads what Linux
// makes of it.
package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/boot"
)

// Entropy is what the operation "entropy" found.
type Entropy struct {
	Current string   // /sys/class/misc/hw_random/rng_current
	Reads   [][]byte // of /dev/hwrng, one for each size that was asked for
}

func main() {
	agent.Register("entropy", entropy)
	os.Exit(boot.Main(os.Args))
}

func entropy(_ context.Context, args json.RawMessage) (any, error) {
	var sizes []int
	if err := json.Unmarshal(args, &sizes); err != nil {
		return nil, err
	}
	name, err := os.ReadFile("/sys/class/misc/hw_random/rng_current")
	if err != nil {
		return nil, err
	}
	e := Entropy{Current: strings.TrimSpace(string(name))}
	f, err := os.Open("/dev/hwrng")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	for _, n := range sizes {
		b := make([]byte, n)
		if n, err = f.Read(b); err != nil {
			return nil, err
		}
		e.Reads = append(e.Reads, b[:n])
	}
	return e, nil
}
