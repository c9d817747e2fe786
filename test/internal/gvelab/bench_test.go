package gvelab

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(envServer) != "" {
		serve()
		return
	}
	testkit.Main(m)
}

// The GPU is a NUMA node. With 64 MiB the kernel now and then ran out of memory.
const gpuSize = 128 << 20

func describe() lab.Description {
	return lab.Description{Guests: []lab.Guest{{NICs: []lab.NIC{{Model: lab.GVE}, {Model: lab.GVE}},
		GPUs: []lab.GPU{{Memory: gpuSize}}}}}
}

type bench struct {
	*testing.T
	*machine.Guest
	lab   *lab.Lab
	start time.Time
	limit time.Duration // for the guest's whole life, and for each call
}

// newBench boots the guest with one CPU. It calls connected to serve a NIC's connection; nil: this process serves
// it.
func newBench(t *testing.T, limit time.Duration, log *slog.Logger, connected func(*lab.Port, *net.UnixConn)) *bench {
	t.Helper()
	return newBenchOf(t, 1, limit, log, connected)
}

func newBenchOf(t *testing.T, cpus int, limit time.Duration, log *slog.Logger,
	connected func(*lab.Port, *net.UnixConn)) *bench {
	t.Helper()
	return newBenchWith(t, describe(), cpus, limit, log, connected)
}

func newBenchWith(t *testing.T, d lab.Description, cpus int, limit time.Duration, log *slog.Logger,
	connected func(*lab.Port, *net.UnixConn)) *bench {
	t.Helper()
	im := machinetest.Images(t, []string{lab.GVE}, guestimages.Options{Modules: []string{module},
		Program: machinetest.Program(t, "vnic.dev/vnic/test/internal/gvelab/guest")})
	b := &bench{T: t, lab: machinetest.Lab(t, d, log), start: time.Now(), limit: limit}
	b.Guest = machinetest.Boot(t, im, b.lab.Machine(0), machine.Config{Agent: agent.Config{Hostname: "churn"},
		Connected: connected, Config: qemu.Config{CPUs: cpus, RAMSize: 512 << 20, Accel: qemu.AccelTCG, Log: log,
			Append: "log_buf_len=8M", BootLimit: limit, TimeLimit: limit}})
	b.ok("the guest has booted")
	return b
}

func (b *bench) ok(format string, args ...any) {
	b.Helper()
	b.Logf("%5.1f s  %s", time.Since(b.start).Seconds(), fmt.Sprintf(format, args...))
}

func (b *bench) call(op string, args, out any) error {
	ctx, cancel := context.WithTimeoutCause(b.Context(), b.limit, fmt.Errorf("%s has taken more than %v", op, b.limit))
	defer cancel()
	err := b.Agent().CallProgress(ctx, op, args, out, func(raw json.RawMessage) {
		var s string
		if json.Unmarshal(raw, &s) == nil {
			b.Log(agent.Plain(s))
		}
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
