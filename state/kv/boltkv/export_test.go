package boltkv

import "time"

// SetSettleTimeout sets how long a transaction is unsettled before the store fails.
func (s *Store) SetSettleTimeout(d time.Duration) { s.settleTimeout = d }
