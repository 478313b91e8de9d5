// Package mounts tells when something has been mounted or unmounted on this machine.
package mounts
