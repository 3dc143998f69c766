//! Calendar time for `strftime_now`. The time comes in as data; no clock is read.

use std::fmt::Write;

/// A moment in civil time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DateTime {
    year: i64,
    /// 1 to 12.
    month: u32,
    /// 1 to 31.
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
    /// Days since Sunday.
    weekday: usize,
    /// 1 to 366.
    day_of_year: u32,
    /// Seconds east of Greenwich.
    offset: i32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const SECONDS_PER_DAY: i64 = 86_400;

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in_month(year: i64, month: u32) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl DateTime {
    /// The civil time `seconds` after 1970-01-01T00:00:00Z, in a zone `offset` seconds east of Greenwich. Times outside
    /// the years 1 to 9999 are moved to the nearest moment inside.
    pub fn from_unix(seconds: i64, offset: i32) -> Self {
        let local = seconds.saturating_add(i64::from(offset)).clamp(-62_135_596_800, 253_402_300_799);
        let (days, of_day) = (local.div_euclid(SECONDS_PER_DAY), local.rem_euclid(SECONDS_PER_DAY));
        // Day 0 is 1 January of the year 1 of the Gregorian calendar, a Monday.
        let from_year_one = days + 719_162;
        let (cycle, mut rest) = (from_year_one / 146_097, from_year_one % 146_097);
        let mut year = cycle * 400 + 1;
        while rest >= 365 + i64::from(is_leap(year)) {
            rest -= 365 + i64::from(is_leap(year));
            year += 1;
        }
        let day_of_year = rest as u32 + 1;
        let mut month = 1;
        while rest >= days_in_month(year, month) {
            rest -= days_in_month(year, month);
            month += 1;
        }
        Self {
            year,
            month,
            day: rest as u32 + 1,
            hour: (of_day / 3600) as u32,
            minute: (of_day / 60 % 60) as u32,
            second: (of_day % 60) as u32,
            weekday: ((from_year_one + 1) % 7) as usize,
            day_of_year,
            offset,
        }
    }

    /// Formats as `strftime` does in the C locale. `Err` carries the directive that is not known.
    pub(crate) fn strftime(&self, format: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next();
            let plain = directive == Some('-');
            if plain {
                directive = chars.next();
            }
            let directive = directive.ok_or_else(|| "%".to_owned())?;
            self.directive(directive, plain, &mut out).ok_or_else(|| format!("%{directive}"))?;
        }
        Ok(out)
    }

    /// One directive; `plain` leaves out leading zeros. `None` when it is not known.
    fn directive(&self, directive: char, plain: bool, out: &mut String) -> Option<()> {
        let hour12 = (self.hour + 11) % 12 + 1;
        let (month, weekday) = (MONTHS[self.month as usize - 1], WEEKDAYS[self.weekday]);
        let mut number = |value: u32, width: usize, fill: char| {
            // Writing to a string does not fail.
            let _ = match (plain, fill) {
                (true, _) => write!(out, "{value}"),
                (false, '0') => write!(out, "{value:0width$}"),
                (false, _) => write!(out, "{value:width$}"),
            };
        };
        match directive {
            'd' => number(self.day, 2, '0'),
            'e' => number(self.day, 2, ' '),
            'm' => number(self.month, 2, '0'),
            'y' => number((self.year % 100) as u32, 2, '0'),
            'H' => number(self.hour, 2, '0'),
            'I' => number(hour12, 2, '0'),
            'M' => number(self.minute, 2, '0'),
            'S' => number(self.second, 2, '0'),
            'j' => number(self.day_of_year, 3, '0'),
            'f' => number(0, 6, '0'),
            'u' => number((self.weekday as u32 + 6) % 7 + 1, 1, '0'),
            'w' => number(self.weekday as u32, 1, '0'),
            'Y' => out.push_str(&self.year.to_string()),
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(&month[..3]),
            'A' => out.push_str(weekday),
            'a' => out.push_str(&weekday[..3]),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'z' => {
                let (sign, minutes) =
                    (if self.offset < 0 { '-' } else { '+' }, self.offset.unsigned_abs() / 60);
                out.push_str(&format!("{sign}{:02}{:02}", minutes / 60, minutes % 60));
            }
            '%' => out.push('%'),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'F' => out.push_str(&self.strftime("%Y-%m-%d").ok()?),
            'D' | 'x' => out.push_str(&self.strftime("%m/%d/%y").ok()?),
            'T' | 'X' => out.push_str(&self.strftime("%H:%M:%S").ok()?),
            'R' => out.push_str(&self.strftime("%H:%M").ok()?),
            'c' => out.push_str(&self.strftime("%a %b %e %H:%M:%S %Y").ok()?),
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(seconds: i64, offset: i32, format: &str) -> String {
        DateTime::from_unix(seconds, offset).strftime(format).unwrap()
    }

    #[test]
    fn known_moments() {
        assert_eq!(format(0, 0, "%c"), "Thu Jan  1 00:00:00 1970");
        assert_eq!(format(951_782_400, 0, "%A %d %B %Y, day %j"), "Tuesday 29 February 2000, day 060");
        assert_eq!(format(1_735_689_599, 0, "%F %T %p"), "2024-12-31 23:59:59 PM");
        assert_eq!(format(1_735_689_599, 3600, "%F %I:%M %p %z"), "2025-01-01 12:59 AM +0100");
        assert_eq!(format(-1, 0, "%-d/%-m/%y"), "31/12/69");
    }

    #[test]
    fn unknown_directive_is_named() {
        assert_eq!(DateTime::from_unix(0, 0).strftime("%Q"), Err("%Q".to_owned()));
    }

    #[test]
    fn extremes_are_clamped() {
        assert_eq!(format(i64::MAX, i32::MAX, "%Y"), "9999");
        assert_eq!(format(i64::MIN, i32::MIN, "%Y"), "1");
    }
}
