// Package nocow makes btrfs write files in place.
//
// btrfs writes everything to a new place (copy on write), so that each write needs new space,
// and allocating a file ahead does not keep writes from failing on a full filesystem. A file
// with the flag NOCOW is written in place, as on other filesystems, except for blocks that it
// shares with other files. The price is that btrfs has no checksums of the file, and so can
// neither detect nor repair damage to it.
package nocow
