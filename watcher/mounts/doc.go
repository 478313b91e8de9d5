// Package mounts watches for mounts and unmounts on this machine.
package mounts
