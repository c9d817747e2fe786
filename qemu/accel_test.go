package qemu

import (
	"testing"
)

func TestAccelIsChosenByTrying(t *testing.T) {
	r := fetched(t)
	t.Setenv("VNIC_GUEST", must(program()))
	accel, why, err := ChooseAccel(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(accel, why)
	if (accel == AccelTCG) == (why == "KVM") {
		t.Errorf("%s: %s", accel, why)
	}
	again, _, err := ChooseAccel(t.Context(), r)
	if err != nil || again != accel {
		t.Errorf("asked again: %s, %v", again, err)
	}
}
