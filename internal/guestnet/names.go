package guestnet

import (
	"fmt"
	"strconv"
	"strings"
)

// DevmemHost is added to the last byte of a guest's address to get the address of its devmem programs. Guest
// i has the address that ends in i+1. A lab file can give other addresses and names.
const DevmemHost = 100

// GuestName and a number are a guest's name.
const GuestName = "guest"

// HostName returns the name of guest i.
func HostName(i int) string { return fmt.Sprint(GuestName, i) }

// DevmemNameOf returns DevmemName of the guest whose HostName is host; false: there is none.
func DevmemNameOf(host string) (string, bool) {
	i, err := strconv.Atoi(strings.TrimPrefix(host, GuestName))
	if err != nil || host != HostName(i) {
		return "", false
	}
	return DevmemName(i), true
}

// DevmemName returns the name of the address of guest i's devmem programs.
func DevmemName(i int) string { return HostName(i) + "-devmem" }
