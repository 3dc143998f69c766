//! A chart as a picture: groups from top to bottom, in each the nodes in ranks by the longest way to them.

use std::fmt::Write as _;

use super::dot::lines;
use super::{Chart, Group, Operand, outside_name};

/// Pixels of a character in a box, and of a line.
const CHAR: f64 = 6.3;
const LINE: f64 = 14.0;
/// Pixels between ranks, which hold the labels of edges, and between what stands side by side.
const BETWEEN_RANKS: f64 = 40.0;
const BESIDE: f64 = 18.0;
/// Pixels around a group's nodes, and what a passing edge takes.
const PADDING: f64 = 24.0;
const PASSING: f64 = 10.0;
/// Pixels of a group's title, and between groups.
const TITLE: f64 = 30.0;
const BETWEEN_GROUPS: f64 = 36.0;

const STYLE: &str = "\
text{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:10.5px;fill:#1c2733}\
.group{fill:#f4f6f9;stroke:#c3ccd6}.title{font-family:system-ui,sans-serif;font-size:14px;font-weight:600}\
.node{fill:#fff;stroke:#5b6b7b}.weights{fill:#e8f1fb;stroke:#3c78b4}.state{fill:#fdf1dc;stroke:#b9822b}\
.op{font-weight:700;font-size:11.5px}.edge{fill:none;stroke:#5b6b7b;stroke-width:1.2}.order{stroke-dasharray:4 3}\
.label{font-size:9.5px;fill:#44556a;paint-order:stroke;stroke:#f4f6f9;stroke-width:3px}.port{fill:#ffffff;stroke:none}";

impl Chart {
    /// The chart as an SVG document.
    pub fn svg(&self) -> String {
        let layouts: Vec<Layout> = self.groups.iter().map(Layout::new).collect();
        let title_width = |g: &Group| g.title.len() as f64 * 8.0 + 2.0 * PADDING;
        let widths =
            self.groups.iter().zip(&layouts).map(|(g, l)| title_width(g).max(l.width + 2.0 * PADDING));
        let wide = widths.fold(240.0, f64::max);
        let mut body = String::new();
        let mut y = PADDING;
        for (i, (group, layout)) in self.groups.iter().zip(&layouts).enumerate() {
            let tall = layout.height + TITLE + PADDING;
            let centre = PADDING + wide / 2.0;
            if i > 0 {
                arrow(&mut body, (centre, y - BETWEEN_GROUPS), (centre, y), "edge");
            }
            let _ = writeln!(
                body,
                "<rect class=\"group\" x=\"{PADDING}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{tall:.1}\" rx=\"8\"/>\
                 <text class=\"title\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                PADDING + 14.0,
                y + 20.0,
                escaped(&group.title)
            );
            layout.draw(&mut body, group, centre, y + TITLE);
            y += tall + BETWEEN_GROUPS;
        }
        let (width, height) = (wide + 2.0 * PADDING, y - BETWEEN_GROUPS + PADDING);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} \
             {height:.0}\">\n<style>{STYLE}</style>\n<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" \
             markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#5b6b7b\"/></marker></defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
        )
    }
}

/// What stands in a rank.
#[derive(Clone, Copy, PartialEq)]
enum Slot {
    /// Values from outside the group.
    Outside(usize),
    Node(usize),
    /// An edge on its way from one of the above, by index into the sources.
    Passing(usize),
}

/// A slot in its place, around x = 0.
struct Placed {
    slot: Slot,
    /// Centre.
    x: f64,
    width: f64,
    height: f64,
}

/// Where the nodes of a group stand.
struct Layout {
    ranks: Vec<Vec<Placed>>,
    /// Top of each rank and its height.
    tops: Vec<(f64, f64)>,
    width: f64,
    height: f64,
}

/// Sources are counted from outside values on: those first, then nodes.
fn sources_of(group: &Group, node: usize) -> Vec<usize> {
    let outside = group.outside.len();
    let node = &group.nodes[node];
    let mut sources: Vec<usize> = node
        .operands
        .iter()
        .filter_map(|operand| match operand {
            Operand::Node { node, .. } => Some(outside + node),
            Operand::Outside(i) => Some(*i),
            Operand::Port { .. } => None,
        })
        .chain(node.after.map(|n| outside + n))
        .collect();
    sources.sort_unstable();
    sources.dedup();
    sources
}

impl Layout {
    fn new(group: &Group) -> Layout {
        let outside = group.outside.len();
        let mut rank = vec![0; outside + group.nodes.len()];
        let mut last_reader = vec![0; rank.len()];
        for node in 0..group.nodes.len() {
            let sources = sources_of(group, node);
            let own = sources.iter().map(|s| rank[*s] + 1).max().unwrap_or(usize::from(outside > 0));
            rank[outside + node] = own;
            sources.iter().for_each(|s| last_reader[*s] = last_reader[*s].max(own));
        }
        let count = rank.iter().max().map_or(0, |r| r + 1);
        let mut slots: Vec<Vec<Slot>> = vec![vec![]; count];
        for source in 0..rank.len() {
            let slot = if source < outside { Slot::Outside(source) } else { Slot::Node(source - outside) };
            slots[rank[source]].push(slot);
            for passed in slots.iter_mut().take(last_reader[source]).skip(rank[source] + 1) {
                passed.push(Slot::Passing(source));
            }
        }
        let mut ranks: Vec<Vec<Placed>> = vec![];
        for slots in slots {
            ranks.push(place(group, slots, ranks.last()));
        }
        let mut tops = vec![];
        let mut height = 0.0;
        for rank in &ranks {
            let tall = rank.iter().map(|p| p.height).fold(0.0, f64::max);
            tops.push((height, tall));
            height += tall + BETWEEN_RANKS;
        }
        let edges = ranks.iter().flatten().map(|p| p.x.abs() + p.width / 2.0);
        Layout { width: 2.0 * edges.fold(0.0, f64::max), ranks, tops, height }
    }

    /// Where a source leaves a rank: its own box's bottom, or where its edge passes.
    fn exit(&self, group: &Group, rank: usize, source: usize) -> Option<(f64, f64)> {
        let placed = self.ranks[rank].iter().find(|p| is_of(group, p.slot, source))?;
        let (top, tall) = self.tops[rank];
        // A passing edge goes down to the end of the rank; a box ends where it ends.
        let bottom = if matches!(placed.slot, Slot::Passing(_)) { tall } else { placed.height };
        Some((placed.x, top + bottom))
    }

    fn draw(&self, out: &mut String, group: &Group, centre: f64, y: f64) {
        let outside = group.outside.len();
        for (r, rank) in self.ranks.iter().enumerate() {
            for placed in rank {
                let entry = (centre + placed.x, y + self.tops[r].0);
                let sources = match placed.slot {
                    Slot::Node(node) => sources_of(group, node),
                    Slot::Passing(source) => vec![source],
                    Slot::Outside(_) => continue,
                };
                let ordered = |source: usize| match placed.slot {
                    Slot::Node(node) => group.nodes[node].after.is_some_and(|n| outside + n == source),
                    _ => false,
                };
                for source in sources {
                    let Some((sx, sy)) = self.exit(group, r - 1, source) else { continue };
                    let from = (centre + sx, y + sy);
                    if let Slot::Passing(_) = placed.slot {
                        curve(out, from, entry, false);
                        let _ = writeln!(
                            out,
                            "<path class=\"edge\" d=\"M{:.1} {:.1}V{:.1}\"/>",
                            entry.0,
                            entry.1,
                            entry.1 + self.tops[r].1
                        );
                    } else if ordered(source) {
                        arrow(out, from, entry, "edge order");
                    } else {
                        curve(out, from, entry, true);
                    }
                }
            }
        }
        for (r, rank) in self.ranks.iter().enumerate() {
            for placed in rank {
                draw_slot(out, group, placed, centre + placed.x, y + self.tops[r].0);
            }
        }
    }
}

fn is_of(group: &Group, slot: Slot, source: usize) -> bool {
    match slot {
        Slot::Outside(i) | Slot::Passing(i) => i == source,
        Slot::Node(i) => group.outside.len() + i == source,
    }
}

/// Sets slots side by side, each as near below what it reads as the others let it.
fn place(group: &Group, slots: Vec<Slot>, above: Option<&Vec<Placed>>) -> Vec<Placed> {
    let wish = |slot: Slot| {
        let sources = match slot {
            Slot::Node(node) => sources_of(group, node),
            Slot::Passing(source) => vec![source],
            Slot::Outside(_) => vec![],
        };
        let above = || above.into_iter().flatten();
        let xs = sources.iter().filter_map(|s| above().find(|p| is_of(group, p.slot, *s)).map(|p| p.x));
        let xs: Vec<f64> = xs.collect();
        if xs.is_empty() { 0.0 } else { xs.iter().sum::<f64>() / xs.len() as f64 }
    };
    let mut placed: Vec<(f64, Placed)> = slots
        .into_iter()
        .map(|slot| {
            let (width, height) = size(group, slot);
            (wish(slot), Placed { slot, x: 0.0, width, height })
        })
        .collect();
    // What passes goes to the outside of what stands where it does, so that ways around are short.
    placed.sort_by(|(a, p), (b, q)| {
        let passes = |p: &Placed| matches!(p.slot, Slot::Passing(_));
        a.total_cmp(b).then(passes(p).cmp(&passes(q)))
    });
    let whole: f64 = placed.iter().map(|(_, p)| p.width).sum::<f64>() + BESIDE * (placed.len() - 1) as f64;
    let mean = placed.iter().map(|(wish, _)| wish).sum::<f64>() / placed.len() as f64;
    let mut left = if placed.len() == 1 { mean } else { 0.0 } - whole / 2.0;
    let mut rank = vec![];
    for (_, mut p) in placed {
        p.x = left + p.width / 2.0;
        left += p.width + BESIDE;
        rank.push(p);
    }
    rank
}

fn size(group: &Group, slot: Slot) -> (f64, f64) {
    let of_lines = |lines: &[String], label: usize| {
        let widest = lines.iter().map(|l| l.chars().count()).max().unwrap_or(0).max(8);
        // Room for the label of the edge, which begins at the centre.
        let wide = (widest as f64 * CHAR + 18.0).max(2.0 * label as f64 * 5.8 + 8.0);
        (wide, lines.len() as f64 * LINE + 10.0)
    };
    match slot {
        Slot::Passing(_) => (PASSING, 0.0),
        Slot::Outside(i) => of_lines(&[outside_name(i)], group.outside[i].len()),
        Slot::Node(i) => of_lines(&lines(&group.nodes[i]), label(group, i).len()),
    }
}

/// What stands at the edge that leaves a node.
fn label(group: &Group, node: usize) -> String {
    let node = &group.nodes[node];
    let output = node.output.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    format!("{output}{}", node.results.join("; "))
}

fn draw_slot(out: &mut String, group: &Group, placed: &Placed, x: f64, y: f64) {
    let (lines, class, label) = match placed.slot {
        Slot::Passing(_) => return,
        Slot::Outside(i) => (vec![outside_name(i)], "port", group.outside[i].clone()),
        Slot::Node(i) => {
            let node = &group.nodes[i];
            let has = |wanted: crate::PortKind| {
                let is = |o: &Operand| matches!(o, Operand::Port { kind, .. } if *kind == wanted);
                node.operands.iter().any(is)
            };
            let class = match (has(crate::PortKind::State), has(crate::PortKind::Weight)) {
                (true, _) => "state",
                (_, true) => "weights",
                _ => "node",
            };
            (lines(node), class, label(group, i))
        }
    };
    let (left, wide) = (x - placed.width / 2.0, placed.width);
    let _ = writeln!(
        out,
        "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{:.1}\" rx=\"4\"/>",
        placed.height
    );
    for (i, line) in lines.iter().enumerate() {
        let class = if i == 0 { " class=\"op\"" } else { "" };
        let at = y + LINE * (i + 1) as f64;
        let line = escaped(line);
        let _ = writeln!(out, "<text{class} x=\"{x:.1}\" y=\"{at:.1}\" text-anchor=\"middle\">{line}</text>");
    }
    let _ = writeln!(
        out,
        "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        x + 5.0,
        y + placed.height + 12.0,
        escaped(&label)
    );
}

fn arrow(out: &mut String, from: (f64, f64), to: (f64, f64), class: &str) {
    let _ = writeln!(
        out,
        "<path class=\"{class}\" marker-end=\"url(#tip)\" d=\"M{:.1} {:.1}L{:.1} {:.1}\"/>",
        from.0, from.1, to.0, to.1
    );
}

/// A line that leaves and arrives upright.
fn curve(out: &mut String, from: (f64, f64), to: (f64, f64), tip: bool) {
    let tip = if tip { " marker-end=\"url(#tip)\"" } else { "" };
    let bend = (to.1 - from.1) / 2.0;
    let _ = writeln!(
        out,
        "<path class=\"edge\"{tip} d=\"M{:.1} {:.1}C{:.1} {:.1} {:.1} {:.1} {:.1} {:.1}\"/>",
        from.0,
        from.1,
        from.0,
        from.1 + bend,
        to.0,
        to.1 - bend,
        to.0,
        to.1
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The boxes of a group, each from left to right and from top to bottom.
#[cfg(test)]
pub(super) fn boxes(group: &Group) -> Vec<((f64, f64), (f64, f64))> {
    let layout = Layout::new(group);
    let of_rank = |(rank, (top, _)): (&Vec<Placed>, &(f64, f64))| {
        let of = |p: &Placed| ((p.x - p.width / 2.0, p.x + p.width / 2.0), (*top, *top + p.height));
        rank.iter().filter(|p| !matches!(p.slot, Slot::Passing(_))).map(of).collect::<Vec<_>>()
    };
    layout.ranks.iter().zip(&layout.tops).flat_map(of_rank).collect()
}
