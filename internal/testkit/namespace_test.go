package testkit

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRefusedNamespacesLeaveNothing(t *testing.T) {
	if !InNamespace(t) {
		return
	}
	users := strings.Fields(string(Must(os.ReadFile("/proc/self/uid_map"))(t)))
	if len(users) != 3 || users[2] != "1" {
		t.Skip("without a user namespace of our own the limit would be the machine's")
	}
	LeavesNothing(t)
	OK(t, MayClone(unix.CLONE_NEWUSER))
	OK(t, os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0)) // limits user namespaces below this one
	if err := MayClone(unix.CLONE_NEWUSER); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
}
