package transfer

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// CPU is a guest's CPU time, in seconds. Spin is the part of User in which vnic's driver polled its idle NIC; 0 with
// the kernel's driver.
type CPU struct {
	User   float64 `json:"user"`
	System float64 `json:"system"`
	IRQ    float64 `json:"irq"`
	Spin   float64 `json:"spin"`
}

func (c CPU) minus(b CPU) CPU {
	return CPU{User: c.User - b.User, System: c.System - b.System, IRQ: c.IRQ - b.IRQ, Spin: c.Spin - b.Spin}
}

// Add returns the sum of two times.
func (c CPU) Add(b CPU) CPU {
	return CPU{User: c.User + b.User, System: c.System + b.System, IRQ: c.IRQ + b.IRQ, Spin: c.Spin + b.Spin}
}

// Work returns the sum of the times without Spin, and at least 0.
func (c CPU) Work() float64 { return max(0, c.User+c.System+c.IRQ-c.Spin) }

const userHZ = 100

// ProcStat reads the CPU time of the whole machine since boot (proc(5), /proc/stat). It leaves Spin 0.
func ProcStat() (CPU, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return CPU{}, err
	}
	return parseStat(b)
}

func parseStat(b []byte) (c CPU, err error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := bytes.Fields(line)
	if len(f) < 8 || string(f[0]) != "cpu" {
		return c, fmt.Errorf("/proc/stat begins with %q, not with the line cpu", line)
	}
	var v [8]float64 // user nice system idle iowait irq softirq; the last is not used
	for i := range v[:7] {
		n, err := strconv.ParseUint(string(f[i+1]), 10, 64)
		if err != nil {
			return c, fmt.Errorf("/proc/stat: %w", err)
		}
		v[i] = float64(n) / userHZ
	}
	return CPU{User: v[0] + v[1], System: v[2], IRQ: v[5] + v[6]}, nil
}
