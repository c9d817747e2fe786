package qemu

import (
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// unplugMachine makes a machine without QEMU; the replies to its QMP commands come from the function answer.
func unplugMachine(t *testing.T, answer func(n int, line string) string) *Machine {
	m := &Machine{name: "m", done: make(chan struct{}), qmp: peerQMP(t, answer)}
	m.unplugs.init(&Config{Netdevs: []Netdev{{Hotplug: true}, {}}, GPUs: []GPU{{Hotplug: true}}})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range m.qmp.events {
			m.event(e)
		}
	}()
	t.Cleanup(func() {
		_ = m.qmp.conn.Close()
		<-ended
	})
	return m
}

func answered(n int) string { return fmt.Sprintf(`{"return": {}, "id": %d}`, n) }

// A removal's channel receives the result that QEMU reports.
func TestUnplug(t *testing.T) {
	testkit.LeavesNothing(t)
	m := unplugMachine(t, func(n int, line string) string {
		deleted := func(event, device string) string {
			return fmt.Sprintf("%s\n"+`{"event": "%s", "data": {"path": "/machine/x"}}`+"\n"+
				`{"event": "%s", "data": {"device": "%s", "path": "/machine/x"}}`, answered(n), event, event, device)
		}
		switch {
		case strings.Contains(line, `"arguments":{"id":"dev-net0"}`):
			return deleted("DEVICE_DELETED", "dev-net0")
		case strings.Contains(line, `"arguments":{"id":"dev-gpu0"}`):
			return deleted("DEVICE_UNPLUG_GUEST_ERROR", "dev-gpu0")
		}
		return "?"
	})
	done := testkit.Must(m.UnplugNIC(0))(t)
	testkit.OK(t, <-done)
	done = testkit.Must(m.UnplugGPU(0))(t)
	testkit.ErrorIs(t, <-done, ErrKept)
	_, err := m.UnplugNIC(1)
	testkit.ErrorIs(t, err, ErrFixed)
	m.unplugged("dev-net9", nil) // no removal waits for it
}

// A device has one request at a time, which ends with the machine.
func TestUnplugThatDoesNotEnd(t *testing.T) {
	testkit.LeavesNothing(t)
	m := unplugMachine(t, func(n int, line string) string {
		if strings.Contains(line, "dev-gpu0") {
			return fmt.Sprintf(`{"error": {"class": "GenericError", "desc": "Bus 'pcie.0' does not support hotplugging"}, `+
				`"id": %d}`, n)
		}
		return answered(n)
	})
	_, err := m.UnplugGPU(0)
	testkit.ErrorSays(t, err, "does not support hotplugging")
	done := testkit.Must(m.UnplugNIC(0))(t)
	_, err = m.UnplugNIC(0)
	testkit.ErrorSays(t, err, "on its way out already")
	close(m.done)
	if err, done2 := <-done; done2 {
		t.Errorf("told that the device is out, or not: %v", err)
	}
}
