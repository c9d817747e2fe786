package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/transfer"
)

// Number returns an error unless a flag's value is from least to most.
func Number(flag string, v, least, most int) error {
	if v < least || v > most {
		return fmt.Errorf("%s %d: %d to %d", flag, v, least, most)
	}
	return nil
}

// Bytes returns an error unless a flag's value is from one byte to most.
func Bytes(flag string, v, most uint64) error {
	if v == 0 || v > most {
		return fmt.Errorf("%s %s: 1 byte to %s", flag, lab.FormatBytes(v), lab.FormatBytes(most))
	}
	return nil
}

// Patience returns an error unless a flag's value is from 1 ms to 1 hour.
func Patience(flag string, v time.Duration) error {
	if v < time.Millisecond || v > time.Hour {
		return fmt.Errorf("%s %v: 1ms to 1h", flag, v)
	}
	return nil
}

// OneOf returns an error unless a flag's value is one of list.
func OneOf(flag, v string, list ...string) error {
	if slices.Contains(list, v) {
		return nil
	}
	last := len(list) - 1
	return fmt.Errorf("%s %s: %s or %s", flag, v, strings.Join(list[:last], ", "), list[last])
}

// Family returns an error unless family is 4, or 6 with an MTU of at least 1280 (RFC 8200, section 5).
func Family(family, mtu int) error {
	switch {
	case family != 4 && family != 6:
		return fmt.Errorf("--family %d: 4 or 6", family)
	case family == 6 && mtu < 1280:
		return fmt.Errorf("--mtu %d: 1280 at least with --family 6", mtu)
	}
	return nil
}

// Modes returns an error unless modes has only modes of transfer, and at least one.
func Modes(modes []string) error {
	for _, m := range modes {
		if m != transfer.Devmem && m != transfer.Copy {
			return fmt.Errorf("--mode %s: devmem, copy or both", m)
		}
	}
	if len(modes) == 0 {
		return errors.New("--mode: devmem, copy or both")
	}
	return nil
}
