package markfile

import "golang.org/x/sys/unix"

// noFollow refuses to open what a symbolic link leads to.
const noFollow = unix.O_NOFOLLOW
