package guestnet

import (
	"fmt"
	"strconv"
	"strings"
)

// DevmemHost is added to the last part of a guest's address for that of its devmem programs:
// addresses of their own, as they take them off the interface when they end. Guest i has the
// address that ends in i+1.
const DevmemHost = 100

// GuestName and a number are a guest's name.
const GuestName = "guest"

// HostName is the name of guest i.
func HostName(i int) string { return fmt.Sprint(GuestName, i) }

// DevmemNameOf gives the name of the address of the devmem programs of the guest of that name; false: it is no guest's.
func DevmemNameOf(host string) (string, bool) {
	i, err := strconv.Atoi(strings.TrimPrefix(host, GuestName))
	if err != nil || host != HostName(i) {
		return "", false
	}
	return DevmemName(i), true
}

// DevmemName is the name of the address of guest i's devmem programs.
func DevmemName(i int) string { return HostName(i) + "-devmem" }
