// Command guest is process 1 of the guest that boots with the entropy device. Its operation "entropy"
// returns the name of Linux's current hardware random number generator, and bytes read from it.
package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/boot"
)

// Entropy is the result of the operation "entropy".
type Entropy struct {
	Current string   // text of /sys/class/misc/hw_random/rng_current
	Reads   [][]byte // bytes of /dev/hwrng: one read for each requested size, which may return fewer
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
