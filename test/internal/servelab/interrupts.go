package servelab

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

const pairs = 4

// interrupts returns how often each of the guest's receive queues has interrupted, summed over the CPUs. It returns an
// error unless it finds a line for each of the queues 0 to pairs-1.
func interrupts() (n [pairs]uint64, err error) {
	f, err := os.Open("/proc/interrupts")
	if err != nil {
		return n, err
	}
	defer f.Close()
	found := 0
	for lines := bufio.NewScanner(f); lines.Scan(); { // as "25:  7  9  PCI-MSIX-0000:00:02.0 1-edge virtio0-input.0"
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		_, queue, ok := strings.Cut(fields[len(fields)-1], "-input.")
		i, err := strconv.Atoi(queue)
		if !ok || err != nil || i >= pairs {
			continue
		}
		found++
		for _, v := range fields[1:] {
			k, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				break
			}
			n[i] += k
		}
	}
	if found != pairs {
		return n, fmt.Errorf("/proc/interrupts names %d receive queues, not %d", found, pairs)
	}
	return n, nil
}
